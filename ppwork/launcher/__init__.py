"""The launcher: ranks as processes of this machine, and of others.

Plans are refused or started, ranks followed, runs listed and stopped, and no process is left behind. On
several hosts a node does so for its own host (``nodes``), and the launcher for the run.

May import: ``diagnosis``, ``timeline``, ``records``, ``workloads`` (``spec`` and ``clip``: no torch),
``plan``, ``protocol``, ``errors``, ``process``.
"""
