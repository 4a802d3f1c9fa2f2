"""What every command needs, imported once."""

import ddtree_deploy.cli
import ddtree_deploy.commands.look
import ddtree_deploy.commands.mend
import ddtree_deploy.commands.run
import ddtree_deploy.planning.plan
import ddtree_deploy.running.rollout
import ddtree_deploy.running.status
import ddtree_deploy.ssh  # noqa: F401
