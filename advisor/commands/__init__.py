"""The commands: each parses its flags, calls one function and prints what it gives.

Stdout is data, stderr is talk. Imports of the packages that do the work sit inside the commands, so that
`advise --help` loads neither numpy nor torch. Which of them the app has is `advisor.cli`'s.
"""
