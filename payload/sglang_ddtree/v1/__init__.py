"""DDTREE on SGLang 0.5.13: the V1 worker of DFLASH, driven synchronously, and a dataclass ``ServerArgs``.

    algorithm  the entry in the algorithm registry, and the argument checks
    info       the verify input of a tree
    worker     draft -> tree -> verify -> commit
    commit     accepted tokens into the requests, accepted KV slots into the table

Everything else of the package is shared with the newer line.
"""
