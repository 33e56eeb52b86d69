"""Filter, score, pick: how a request finds its endpoint. Pure; shared by the live router and the simulated fleet."""

from tonnage_core.scheduling.decide import schedule
from tonnage_core.scheduling.hold import HeldPrompts, HoldRule
from tonnage_core.scheduling.profile import POLICIES, Profile, make_profile
from tonnage_core.scheduling.scheduler import Reservation, Scheduler
from tonnage_core.scheduling.types import Candidate, Decision, Reason, Room, SchedulingError, SchedulingRequest

__all__ = [
    "POLICIES",
    "Candidate",
    "Decision",
    "HeldPrompts",
    "HoldRule",
    "Profile",
    "Reason",
    "Reservation",
    "Room",
    "Scheduler",
    "SchedulingError",
    "SchedulingRequest",
    "make_profile",
    "schedule",
]
