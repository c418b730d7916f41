"""What GPUs of four kinds say of themselves, for the driver library of the tests."""

from __future__ import annotations

from gangrun.adapters.local.played_world import H100

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
