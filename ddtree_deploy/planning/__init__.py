"""Host x Facts x Payload x Playbook -> Plan. Pure: no clock, no network, no files."""
