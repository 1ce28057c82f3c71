"""The launcher: starts ranks as processes of this machine, and of others.

It refuses or starts plans, follows their ranks, lists and stops runs, and leaves no process behind. On
several hosts a node does so for its own host (``nodes``), and the launcher for the run.

May import: ``diagnosis``, ``timeline``, ``records``, ``workloads`` (``spec`` and ``clip``: no torch),
``plan``, ``protocol``, ``errors``, ``process``.
"""
