"""The launcher: ranks as processes of this machine.

Plans are refused or started, ranks followed, runs listed and stopped, and no process is left behind.

May import: ``diagnosis``, ``timeline``, ``records``, ``workloads`` (``spec`` and ``clip``: no torch),
``plan``, ``protocol``, ``errors``, ``process``.
"""
