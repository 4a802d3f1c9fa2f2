"""What is known of the hosts, and the one exit code that follows from it.

Before anything was begun on a host, an error has its own code: 2, 4, 5, 6, or 1 where a gate of ours failed.
From then on the code is what the host said. Where it has not said how it ended, it is 8, whatever went wrong
here: an error of output, of a disk, of our own code is no verdict on a run that goes on.
"""

from __future__ import annotations

from collections.abc import Callable

from ddtree_deploy.errors import NOTHING_DONE, ContactLost, DeployError, Interrupted, gravest
from ddtree_deploy.running.complaint import bug
from ddtree_deploy.running.interrupts import Interrupts
from ddtree_deploy.running.outcome import Outcome

_seen: list[Sight] = []


class Sight:
    """One host. `code`: the exit code as far as it is known; None where nothing was begun or tried yet."""

    def __init__(self) -> None:
        self.code: int | None = None
        self.open = False  # something of ours goes on there, and its end was not told
        _seen.append(self)

    def begin(self) -> None:
        """From now on the host may be at it, whatever we hear."""
        self.open, self.code = True, ContactLost.exit_code

    def end(self) -> None:
        """The host has said how it ended, or that it has not begun."""
        self.open, self.code = False, None

    def settle(self, host: str, action: str, interrupts: Interrupts, work: Callable[[], Outcome]) -> Outcome:
        """The outcome of the work on a host, also where it failed. Raises nothing.

        After it, signals are only counted: what is known must get out.
        """
        try:
            outcome = work()
        except DeployError as error:
            outcome = self._of_error(error, host, action)
        except KeyboardInterrupt:
            stopped = Interrupted("interrupted before anything was started", state=NOTHING_DONE)
            outcome = self._of_error(stopped, host, action)
        except BaseException as error:
            outcome = self._of_error(bug(error), host, action)
        finally:
            interrupts.hold()
        self.code = outcome.exit_code
        return outcome

    def _of_error(self, error: DeployError, host: str, action: str) -> Outcome:
        if self.open and not isinstance(error, ContactLost):
            error = ContactLost(
                error.message,
                stage=error.stage or "follow",
                state="the host goes on by itself to its verdict",
                next_command=f"ddtree-deploy attach {host}",
            )
        error.host = error.host or host
        return Outcome.of_error(error, host, action)


def forget() -> None:
    """A new command line."""
    _seen.clear()


def exit_code(own: int) -> int:
    """The code of a command that ends by an error of ours, `own` without hosts: the gravest that is known."""
    return gravest([sight.code for sight in _seen if sight.code is not None]) if known() else own


def known() -> bool:
    """Whether anything is known of a host that an error of ours must not hide."""
    return any(sight.code is not None for sight in _seen)
