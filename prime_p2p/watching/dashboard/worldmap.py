"""A map of the world with the peers that say where they are: an equirectangular drawing, in degrees."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from html import escape

from prime_p2p.monitor import parts
from prime_p2p.swarm.location import Location
from prime_p2p.watching.dashboard import pieces
from prime_p2p.watching.view import RunView

MOST_NAMES = 20  # of the peers at one place

# Outlines of the land, drawn by hand to be recognised: longitude,latitude in whole degrees. The last of them is the
# Caspian Sea, a hole by the even-odd rule.
OUTLINES = (
    # North and Central America
    "-168,66 -157,71 -115,67 -98,67 -94,72 -92,69 -82,69 -94,61 -92,57 -83,55 -79,51 -77,57 -78,62 -70,59 -65,60 -56,53"
    " -60,50 -67,49 -61,46 -70,43 -74,40 -76,35 -81,31 -80,25 -84,30 -97,27 -97,21 -94,18 -87,21 -88,16 -83,15"
    " -83,10 -77,8 -80,7 -88,13 -102,18 -114,31 -109,23 -113,26 -124,40 -124,47 -133,56 -147,61 -164,54 -158,58"
    " -166,62 -161,65",
    # South America
    "-77,8 -72,12 -62,11 -51,4 -50,0 -35,-6 -39,-14 -41,-22 -48,-26 -54,-34 -58,-34 -57,-38 -65,-41 -69,-51 -65,-55"
    " -71,-54 -75,-47 -70,-19 -81,-5 -80,1",
    # Greenland, Baffin, Victoria and Ellesmere Island, Newfoundland, Cuba, Hispaniola
    "-73,78 -60,82 -33,83 -12,81 -24,70 -43,60 -53,66 -58,75",
    "-65,62 -62,66 -80,74 -89,73 -73,68 -77,65",
    "-125,72 -105,73 -102,69 -115,69",
    "-90,77 -81,76 -66,82 -90,82",
    "-59,48 -56,51 -53,47",
    "-85,22 -82,23 -74,20",
    "-74,18 -72,20 -68,18",
    # Iceland, Great Britain, Ireland, Novaya Zemlya
    "-24,65 -16,66 -14,65 -19,63",
    "-5,50 1,51 -2,56 -4,59 -6,57 -3,54 -5,52",
    "-10,52 -6,52 -6,55",
    "52,71 56,74 68,77 58,71",
    # Eurasia, and its end beyond 180 degrees
    "-9,37 -9,43 -2,43 -1,46 -5,48 9,54 8,57 11,57 10,55 19,54 24,59 29,60 21,61 25,65 22,66 14,55 11,59 5,59 5,62"
    " 15,69 26,71 41,67 34,67 37,64 44,68 68,69 67,72 72,73 74,68 80,73 104,78 113,74 130,71 180,69 180,65 163,59"
    " 157,51 156,57 163,62 155,59 142,59 135,55 141,53 140,48 130,42 129,35 126,34 125,40 121,39 122,41 118,39"
    " 122,37 119,35 122,31 120,27 108,21 109,12 105,9 101,13 99,9 104,1 98,8 98,15 94,16 91,22 80,15 78,8 73,20"
    " 67,25 57,26 48,30 51,24 56,26 60,22 55,17 43,13 35,29 32,30 36,36 27,37 26,40 41,41 39,47 34,44 31,46 28,41"
    " 23,40 22,37 19,42 13,46 12,44 18,40 16,38 9,44 3,43 -2,37",
    "-180,69 -170,66 -180,65",
    # Africa, Madagascar, Sri Lanka
    "-6,36 10,37 11,34 19,30 22,33 32,31 39,15 43,12 51,12 40,-3 41,-15 35,-20 35,-24 27,-34 20,-35 12,-18 14,-11"
    " 9,-1 10,4 5,6 -8,4 -17,13 -17,21",
    "49,-12 47,-25 44,-24 44,-17",
    "80,9 82,7 80,6",
    # Sakhalin, Hokkaido, Honshu with Kyushu, Taiwan, Luzon, Mindanao
    "142,54 144,49 142,46",
    "140,42 142,45 145,43",
    "130,33 137,37 141,41 140,35 131,31",
    "120,23 122,25 121,22",
    "120,16 122,18 124,13",
    "122,7 126,10 126,6",
    # Sumatra, Java, Borneo, Sulawesi, New Guinea
    "95,6 106,-6 102,-4",
    "105,-6 115,-8 108,-8",
    "109,1 117,7 119,5 116,-4 110,-3",
    "119,-5 120,1 125,1 122,-5",
    "131,-1 145,-4 151,-10 138,-8",
    # Australia, Tasmania, New Zealand
    "114,-22 131,-12 137,-12 136,-15 140,-18 142,-11 146,-19 153,-26 153,-31 150,-37 140,-38 131,-31 118,-35 115,-34",
    "145,-41 148,-41 147,-43",
    "173,-35 178,-38 175,-41",
    "173,-41 174,-42 167,-46",
    # Antarctica
    "-180,-79 -140,-75 -100,-72 -75,-73 -58,-63 -62,-75 -30,-77 -12,-71 55,-66 130,-66 170,-72 165,-78 180,-79"
    " 180,-90 -180,-90",
    # the Caspian Sea
    "47,45 53,47 54,37 49,38",
)


def world_map(view: RunView) -> str:
    """The peers there that say where they are, a dot for each place; nothing where none does."""
    found: dict[Location, list[str]] = defaultdict(list)
    labels = pieces.labels(view)
    for peer in view.present:
        if peer.beat.location is not None:
            found[peer.beat.location].append(labels[peer.peer_id])
    if not found:
        return ""
    land = f'<path class="land" d="{"".join(f"M{outline}z" for outline in OUTLINES)}"/>'
    crowded_first = sorted(found.items(), key=lambda item: (-len(item[1]), item[0]))  # small dots lie on large ones
    dots = "".join(_dot(location, names) for location, names in crowded_first)
    told, there = sum(map(len, found.values())), len(view.present)
    note = f"Told by peers themselves, to a whole degree: by {told:,} of {there:,}."
    drawing = (
        '<svg class="map" viewBox="-180 -90 360 180" role="img" aria-label="Map of the peers">'
        f'<g transform="scale(1 -1)">{land}</g>{dots}</svg>'
    )
    return parts.card("Where the peers are", note, drawing)


def _dot(location: Location, names: Sequence[str]) -> str:
    """One for all peers at a place; with several it is larger, and says how many."""
    x, y = location.longitude, -location.latitude
    count = len(names)
    shown = ", ".join(sorted(names, key=str.casefold)[:MOST_NAMES])
    more = f" and {count - MOST_NAMES:,} more" if count > MOST_NAMES else ""
    hint = escape(f"{shown}{more}: {pieces.place(location)}")
    radius, number = 2.2, ""
    if count > 1:
        radius, number = 3 + 0.9 * len(str(count)), f'<text x="{x}" y="{y}">{count}</text>'
    return f'<g class="spot"><title>{hint}</title><circle cx="{x}" cy="{y}" r="{radius}"/>{number}</g>'
