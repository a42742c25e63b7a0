"""Programs that serve the same rows of requests, each in a process of its own: ours and those we compare with.

One says how long it took to get ready, then answers each line of stdin, a Row in JSON, with the seconds that
the row took. A peer imports nothing of ours, so that it runs in its own venv.
"""
