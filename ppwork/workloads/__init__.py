"""The workloads: the stages that ship, a video denoiser and stages that only take time.

They are found by import path and know the runtime by the contract of ``stage`` alone.

May import: ``stage``, ``plan``, ``errors``.
"""
