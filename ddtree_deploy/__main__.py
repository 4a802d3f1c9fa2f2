"""`python -m ddtree_deploy`: the console script."""

from ddtree_deploy.entry import main

main()
