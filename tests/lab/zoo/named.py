"""The hosts that were thought of: name -> traits, in this order."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

from tests.lab.zoo import around, logins, runs, units, venvs
from tests.lab.zoo.draft import Draft

Trait = Callable[[Draft], None]
LATE = {"new_command", "late_drop_in", "bom_with_key", "read_not_restarted", "argv0", "forking"}


def traits(module: ModuleType) -> dict[str, Trait]:
    """The traits of a module, by name."""
    found = {name: made for name, made in vars(module).items() if callable(made) and not name.startswith("_")}
    return {
        name: made
        for name, made in found.items()
        if made.__module__ == module.__name__ and made.__doc__ != ""
    }


# More than one trait at once, where the mixture is what people have.
MIXED: dict[str, list[Trait]] = {
    "plain": [],
    "template-with-user-and-dependents": [units.template, runs.other_user, around.requires],
    "alias-with-dependents": [units.alias, around.binds_to],
    "chain-and-notify": [runs.notify, around.chain],
    "chain-and-long-stop": [runs.slow_stop, around.chain],
    "watchdog-and-slow-stop": [runs.slow_stop, around.watchdog],
    "proxy-behind-which-nothing-changes": [around.front],
    "key-in-file-with-dependents": [units.env_key, around.part_of],
    "hardened-user-uv": [runs.hardened, runs.other_user, venvs.uv_like],
    "editable-in-a-checkout": [venvs.editable_pth, runs.checkout_folder],
    "conda-numactl-slice": [venvs.conda_like, units.numactl_like, runs.sliced],
    "sudo-template": [logins.sudo, units.template],
    "two-of-a-template": [units.template, around.second_instance],
    "user-in-noisy-login": [runs.other_user, logins.noisy_rc, runs.log_file],
}
NOT_ALONE = {"front", "depends", "wants_helper"}


def drafts() -> list[Draft]:
    """All of them."""
    made = [draft(name, chosen) for name, chosen in MIXED.items()]
    for module in (units, runs, around, venvs, logins):
        made += [
            draft(name.replace("_", "-"), [trait])
            for name, trait in traits(module).items()
            if name not in NOT_ALONE
        ]
    return made


def draft(name: str, chosen: list[Trait]) -> Draft:
    """A host with these traits; those that copy the whole command come last."""
    made = Draft(name)
    for trait in sorted(chosen, key=lambda t: t.__name__ in LATE):
        trait(made)
        made.traits.append(trait.__name__)
    return made
