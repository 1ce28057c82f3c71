"""The lab: tools for JupyterLab.

Live view, sliders, ``%%ranks``, helpers and exercises of the lessons, doctor, sweeps, and the course as
files. The extra ``ppwork[lab]`` installs what these modules need.

May import: ``claims``, ``faults``, ``launcher``, ``pictures``, ``diagnosis``, ``timeline``, ``records``,
``plan``, ``protocol`` and the ground.
"""
