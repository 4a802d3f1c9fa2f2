"""A lab of real hosts on one machine: systemd as PID 1, sshd, a WAN, and faults.

    with Lab(folder) as lab:
        host = lab.host()                       # booted, answers SSH, serves the fake SGLang
        host.ssh("systemctl restart sglang")
        with lab.inside():                      # this thread's sockets and children are the controller's
            ...
        with partition(host):
            ...

Needs root; nothing is downloaded: the hosts' /usr is this machine's own, read-only. `need.missing()` names
what a machine lacks. Everything lives in namespaces, cgroups and one folder, and ends with the lab;
what a killed test run left behind is swept by the next lab.
"""
