"""A source's URI as others may see it."""

LONGEST = 200


def shown_uri(uri: str) -> str:
    """The URI without what may be a secret: user name and password, query, fragment. A path stays as it is."""
    if "://" not in uri:
        return uri
    scheme, _, rest = uri.partition("://")
    place, slash, path = rest.partition("?")[0].partition("#")[0].partition("/")
    return f"{scheme}://{place.rpartition('@')[2]}{slash}{path}"[:LONGEST]
