"""Hosts made up by a seed: of each group one trait, or none. What may be refused, and why, they tell."""

from __future__ import annotations

import random

from tests.lab.zoo import around, logins, runs, units, venvs
from tests.lab.zoo.draft import Draft
from tests.lab.zoo.named import Trait, draft

# A trait goes with each of the other groups. The number is the share of hosts that have one of the group.
GROUPS: list[tuple[float, list[Trait]]] = [
    (0.4, [units.template, units.escaped_instance, units.alias, units.linked_unit]),
    (
        0.5,
        [
            units.drop_ins,
            units.new_command,
            units.type_drop_in,
            units.latin_1,
            units.crlf_drop_in,
            units.bom_in_unit,
        ],
    ),
    (0.6, [units.quotes, units.specifiers, units.variables, units.flags_in_file, units.continued]),
    (0.4, [units.several_files, units.launch_env, units.manager_environment, units.env_key, units.plain_key]),
    (0.3, [units.numactl_like, units.env_prefix, units.setpriv_prefix, units.minus]),
    (0.3, [runs.other_user, runs.sliced, runs.hardened]),
    (0.3, [runs.working_folder, runs.log_file]),
    (0.4, [runs.notify, runs.exec_type, runs.start_hooks, runs.own_stop, runs.slow_stop, runs.eager]),
    (
        0.5,
        [
            around.requires,
            around.binds_to,
            around.part_of,
            around.requisite,
            around.chain,
            around.dependent_template,
            around.dependent_by_drop_in,
            around.dependent_target,
            around.dependent_with_port,
            around.stop_propagated,
        ],
    ),
    (
        0.3,
        [
            around.front,
            around.second_server,
            around.watchdog,
            around.failed_neighbour,
            around.socket_unit,
            around.loud_neighbour,
            around.helper_when_needed,
            around.conflicts,
        ],
    ),
    (
        0.4,
        [
            venvs.uv_like,
            venvs.editable_pth,
            venvs.editable_finder,
            venvs.linked_in_hosts,
            venvs.noisy_start,
            venvs.system_site,
            venvs.open_to_all,
            venvs.harmless_path,
            venvs.no_bytecode,
            venvs.empty_info,
        ],
    ),
    (
        0.4,
        [
            logins.dash_login,
            logins.noisy_rc,
            logins.moving_rc,
            logins.python_rc,
            logins.bytes_rc,
            logins.sudo,
            logins.locale_c,
            logins.own_state,
            logins.small_disk,
        ],
    ),
    # Hosts that must, or may, be refused: one in four.
    (
        0.25,
        [
            units.our_flag_in_variable,
            units.our_flag_in_file,
            runs.checkout_folder,
            units.late_drop_in,
            units.bash_c,
            venvs.other_venv,
            venvs.other_venv_by_path,
            venvs.edited_by_hand,
            venvs.upgraded,
            around.second_on_venv,
            around.proxy_is_endpoint,
            around.venv_user,
            runs.deaf_beyond,
            venvs.two_infos,
        ],
    ),
]


def drafts(seed: int, count: int) -> list[Draft]:
    """So many hosts; the same ones for the same seed."""
    rng = random.Random(f"zoo {seed}")
    made: list[Draft] = []
    while len(made) < count:
        chosen = [rng.choice(group) for share, group in GROUPS if rng.random() < share]
        if len(chosen) >= 2:
            made.append(draft(f"bred-{seed}-{len(made):03}", chosen))
    return made
