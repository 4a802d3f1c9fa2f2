"""Members for ``SpecInputType``, an IntEnum that cannot be subclassed."""

from __future__ import annotations

from sglang.srt.speculative.spec_info import SpecInputType


def add_spec_input_type(name: str) -> SpecInputType:
    """Return ``SpecInputType.<name>``, adding it with the next free value if it is not there.

    Members pickle by value, so every process that exchanges one must have loaded the plugin.
    """
    existing = SpecInputType.__members__.get(name)
    if existing is not None:
        return existing
    value = max(SpecInputType._value2member_map_) + 1
    member = int.__new__(SpecInputType, value)
    member._name_, member._value_ = name, value
    # EnumMeta refuses to set an attribute that names a member: set it first, then enlist the member.
    type.__setattr__(SpecInputType, name, member)
    SpecInputType._member_map_[name] = member
    SpecInputType._value2member_map_[value] = member
    SpecInputType._member_names_.append(name)
    return member
