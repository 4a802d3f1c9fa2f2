"""Hosts as people have them, on real systemd: is each served as asked, or refused for a true reason?

    python -m tests.lab.zoo --seed 7 [--only REGEX] [--minutes M] [--hosts K]

`draft.py` is a host on paper. A trait changes one thing: `units.py`, `runs.py`, `around.py`, `venvs.py`,
`logins.py`. `named.py` has the hosts that were thought of, `bred.py` makes up more by a seed. `look.py` says
what a host is, and asks nothing of the product. `story.py` is what a person does to one, `fleet.py` to many.
"""
