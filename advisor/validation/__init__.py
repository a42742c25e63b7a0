"""What did happen: replay a window of a Trace against a running endpoint and say PASS, FAIL or INVALID.

`validate.validate` is the door; definitions are in docs/validation.md.
"""
