"""The faults: the catalogue of what can break, and runs that show who noticed.

A fault is data here; what happens inside a rank is in ``worker.injectors``, in modules of the same names.

May import: ``launcher``, ``diagnosis``, ``timeline``, ``records``, ``plan``, ``protocol``, ``errors``,
``process``.
"""

from ppwork.faults.catalogue import FAULTS, fault_of, with_fault

__all__ = ["FAULTS", "fault_of", "with_fault"]
