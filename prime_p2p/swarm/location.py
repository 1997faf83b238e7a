"""Where a peer is said to be: on a whole degree, and only where its owner chose to tell that."""

from __future__ import annotations

from typing import NamedTuple

from prime_p2p.errors import BadInput


class Location(NamedTuple):
    """Whole degrees, north and east positive: a region of about 100 km, so that nobody gives away more than that."""

    latitude: int
    longitude: int

    @classmethod
    def of(cls, text: str) -> Location:
        """The one nearest to ``LAT,LON``, in degrees. Raises BadInput where that is no place."""
        try:
            latitude, longitude = (float(part) for part in text.split(","))
            check_degrees(latitude, longitude)
        except ValueError:
            raise BadInput(
                f"--location {text!r}: must be LAT,LON in degrees, as in 52.5,13.4: latitude from -90 to 90, longitude "
                "from -180 to 180"
            ) from None
        return cls(round(latitude), round(longitude))


def check_degrees(latitude: float, longitude: float) -> None:
    """Raises ValueError where these are no place, as NaN is none."""
    if not (-90 <= latitude <= 90 and -180 <= longitude <= 180):
        raise ValueError("no place on a map")


def checked(location: Location) -> Location:
    """The same, of somebody else. Raises ValueError where it is no place."""
    check_degrees(*location)
    return location
