"""A run over several hosts: one ``ppwork node`` on each, and a launcher with a pipe to each node.

``places`` names the hosts and how to start a process there; ``wire`` defines the messages on the pipes;
``node`` is the process of one host, ``host_session`` the launcher's side of all hosts. ``meet`` finds an
address that all hosts reach, ``gather`` brings files home.
"""
