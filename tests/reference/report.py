"""A long plausible report, about 900 tokens, written for these tests; and a question about it."""

QUESTION = "Which access code did the night supervisor set for the pump room at Alder Quay?"
ANSWER = "74918"

_OPENING = """Harbour and Waterways Office, annual operations report

This report describes how the nine stations of the office worked during the past year. It was
compiled by the planning desk from the station logs, the maintenance ledger and the letters that
residents sent to us. Figures are rounded to whole units unless a footnote says otherwise. Two
events shaped the year more than any others: the long dry spring, which kept the upper locks
closed for twenty-three days, and the storm of the second week of October, when the outer
breakwater lost a section of its stone facing. Neither event caused an injury, but both showed
that our spare parts are stored too far from the places where they are needed.

The council had asked three questions a year ago. Are the ferries punctual enough to replace the
early bus? Can the dredging budget be halved without closing the timber basin? And what would it
cost to keep the swing bridge staffed at night? We answer the first with a careful yes, the second
with no, and the third in an appendix, because the answer depends on wages that are still being
negotiated.

Station by station
"""

_STATIONS = (
    ("Alder Quay", "Maren Holt", 412, "timber", "a cracked fender beam", "replaced in May"),
    ("Birch Lock", "Tobias Renn", 168, "gravel", "a silted culvert", "cleared by divers"),
    ("Cinder Wharf", "Ivo Castellan", 655, "scrap iron", "a worn crane cable", "renewed at once"),
    ("Dove Landing", "Pia Oberlin", 97, "day visitors", "a loose handrail", "welded in an hour"),
    ("Elm Sluice", "Grete Lindqvist", 230, "mail", "a jammed gate wheel", "still under study"),
    ("Fallow Basin", "Anselm Roy", 541, "grain", "rats in the loft", "reported to the city"),
    ("Gull Point", "Henrike Voss", 318, "fish", "two dark lamps", "fitted with new bulbs"),
    ("Heron Bridge", "Lucan Adeyemi", 76, "ferries", "a slow hinge motor", "greased weekly"),
    ("Island Depot", "Sanna Whitlock", 289, "salt", "a leaking roof", "patched before winter"),
)

_SHAPES = (
    "{name} handled {calls} calls, most of them {cargo}. {chief}, who has led the station since "
    "spring, reports {fault}; it was {repair}.",
    "At {name} the log shows {calls} arrivals. {cargo_cap} made up the larger part. The only "
    "serious entry concerns {fault}, {repair}, as {chief} noted in the margin.",
    "{chief} counted {calls} vessels at {name}, fewer than planned because the {cargo} trade moved "
    "downstream in summer. Inspectors found {fault}, which was {repair}.",
)

_NIGHT = """
Night work

Night shifts were reorganised in June. Each station now keeps one supervisor and one deckhand
between ten in the evening and six in the morning, and the pump rooms are locked when nobody is on
duty. After the burglary at the fuel shed the night supervisor at Alder Quay set a new access code
for the pump room, 74918, and wrote it into the sealed book. Other stations kept their mechanical
keys, which cost less but must be fetched from the gatehouse. Overtime fell by a tenth. Staff told
us that the quiet hours are easier to bear since the radio was moved next to the stove, and that
the new boots are a clear improvement on the old ones, which let in water at the heel.

Water levels and dredging

The gauge at Birch Lock was read 1,460 times. Its lowest value, 61 centimetres, was recorded on the
ninth of May, and its highest, 347, on the morning after the storm. Between these extremes the
river behaved well. Ice lasted four days. Silt was less obliging: soundings in the timber basin
showed a metre of mud where two years ago there had been half of that, and a loaded barge touched
ground twice in one week. We hired the dredger Philippa for nineteen days instead of the usual
twelve. Most of the spoil went to the brickworks, which pays a little for it; the rest, too oily
for bricks, was taken to the lined pit behind the railway yard.
"""


def report() -> str:
    """The report's text, the same at every call."""
    lines = [
        _SHAPES[i % len(_SHAPES)].format(
            name=name,
            chief=chief,
            calls=calls,
            cargo=cargo,
            cargo_cap=cargo.capitalize(),
            fault=fault,
            repair=repair,
        )
        for i, (name, chief, calls, cargo, fault, repair) in enumerate(_STATIONS)
    ]
    return _OPENING + "\n" + "\n".join(lines) + "\n" + _NIGHT.rstrip()
