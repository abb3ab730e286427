"""Who may do what: pure rules that servers, the client and the command line share. Each file can be called from
outside. None of them does I/O; time and randomness are arguments.

rights.py      what can be allowed, and how far a call reaches
identities.py  who calls, and the subjects to which roles are granted
tokens.py      tokens, and how they are checked without being kept
policies.py    roles, grants and tokens as one policy, read from a mapping; part: `fields`
permits.py     what an identity may do under a policy
documents.py   a policy as JSON and TOML
editing.py     a policy with one thing changed: for operators
"""
