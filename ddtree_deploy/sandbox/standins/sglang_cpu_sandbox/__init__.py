"""What SGLang needs to run DFlash-family speculation on a CPU without AMX; see `plugin`.

Imported at the start of every interpreter of the sandbox's venv, so this module imports nothing.
"""
