"""A run over several hosts: one ``ppwork node`` on each, and a launcher that has a pipe to each of them.

``places`` says where the hosts are and how a process is started there; ``wire`` what is said over the pipes;
``node`` is the process of one host, ``host_session`` the launcher's side of all of them. ``meet`` finds an
address that all hosts reach, ``gather`` brings files home.
"""
