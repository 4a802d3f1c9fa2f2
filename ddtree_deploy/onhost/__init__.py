"""The part that runs on the host: standard library only, Python 3.10 or newer, shipped as one zipapp.

Inside the zipapp this package is called `onhost`, so its modules import each other relatively.
"""
