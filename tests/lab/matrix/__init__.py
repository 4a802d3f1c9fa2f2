"""`make faults`: every fault at every instant of a rollout and of a rollback, on real systemd hosts.

    python -m tests.lab.matrix --list                  # what is done, and what is not, with the reason
    python -m tests.lab.matrix --seed 7 --only 'install during|then reboot'

A cell is one fault at one instant of one step. It is made from outside: the journal on the host's disk says
when, the runner is stopped for as long as the fault takes to be there, and the product has no code for it.
"""
