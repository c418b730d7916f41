"""What GPUs of four kinds say of themselves, for the driver library of the tests."""

from __future__ import annotations

H100 = {
    "uuid": "GPU-{n}", "name": "NVIDIA H100 80GB HBM3", "pci": "00000000:{n}B:00.0", "field230": 0, "field91": 2,
    "vbios": "96.00.89.00.01", "info_rom_version": "G520.0200.00.05", "sram": "0 0 0 0 0 0 0 0",
    "ecc00": 0, "ecc10": 0, "ecc11": 0, "remapped": "0 0 0 0", "temperature": 41, "margin": 46,
    "banks": "640 0 0 0 0", "info_rom": 1, "threshold": 95,
    "slowdown": 87, "field82": 50, "reasons": 1, "field269": 0, "field270": 0, "field271": 0, "power_limit": 700000,
    "power": 70000, "clock": 345, "width": 16, "width_max": 16, "generation": 1, "generation_max": 5, "replays": 0,
    "persistence": 1, "ecc_mode": 1, "ecc_pending": 1, "mig": 0, "compute_mode": 0, "memory_used": 1000000,
    "processes": 0, "busy": 0, "fabric": "3 0 1", "link0": 1, "link1": 1, "link0.errors0": 0, "link0.errors1": 0,
    "link0.errors2": 0, "link1.errors0": 0, "link1.errors1": 0, "link1.errors2": 0, "link0.errors3": 0,
    "link1.errors3": 0, "link0.field164": 26562, "link1.field164": 26562, "event_types": 0xC00A,
}  # fmt: skip
NONE_SEEN = 0xFFF  # 15e-255
COUNTERS5 = (206, 207, 208, 209, 210, 211, 212, 214, 215, 221)
LINK5 = {**dict.fromkeys(COUNTERS5, 0), 220: NONE_SEEN, 222: NONE_SEEN}
B200 = {
    **{key: value for key, value in H100.items() if ".errors" not in key},
    "name": "NVIDIA B200", "vbios": "97.00.82.00.01", "link0.field164": 53125, "link1.field164": 53125,
    "power_limit": 1000000, "temperature": 38, "margin": 47, "repairs": "0 0", "field307": 0,
    **{f"link{link}.field{number}": value for link in (0, 1) for number, value in LINK5.items()},
}  # fmt: skip
A100 = {
    **{key: value for key, value in H100.items() if key not in ("fabric", "field230")},
    "name": "NVIDIA A100-SXM4-80GB", "power_limit": 400000, "generation_max": 4, "width_max": 16,
    "vbios": "92.00.45.00.03", "link0.field164": 25000, "link1.field164": 25000, "link0.errors4": 0, "link1.errors4": 0,
}  # fmt: skip
H200 = {**H100, "name": "NVIDIA H200"}
PROFILES = {"A100": A100, "H100": H100, "H200": H200, "B200": B200}
