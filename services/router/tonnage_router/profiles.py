"""The scheduling profile that settings name."""

from tonnage_core.scheduling import POLICIES, Profile, make_profile
from tonnage_router.settings import RouterSettings
from tonnage_runtime.errors import SettingsError


def profile_of(settings: RouterSettings) -> Profile:
    """The profile that `settings.policy` names: one of the settings' own, or a built-in."""
    for name, spec in settings.profiles.items():
        if name == settings.policy:
            return make_profile(name, spec.filters, spec.scorers, spec.picker)
    known = [*settings.profiles, *POLICIES]
    if settings.policy not in POLICIES:
        raise SettingsError(f"policy {settings.policy!r} is not known; known: {', '.join(known)}")
    return POLICIES[settings.policy]
