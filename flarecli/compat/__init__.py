"""Other libraries' interfaces over flare's own road: a program that uses one of them changes its import line, and nothing else.

`flarecli.compat.streaming`, `granular`, `ffrecord` and `sds`: each as its original documents it. `docs/compat.md` says what differs,
and why. None of them loads torch, except where its original is a class of torch's.
"""
