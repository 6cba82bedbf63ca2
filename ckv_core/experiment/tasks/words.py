"""Words and prose of which the tasks are made: seeded, any amount, nothing downloaded."""

import random
from collections.abc import Iterator

from ckv_core.base.stored_texts import stored_sentences

_ADJECTIVES = (
    "amber ancient bitter bold bright brisk calm clever cosy crimson curious dusty eager early "
    "elder faint famous fierce foggy fresh frosty gentle giant golden graceful grand grey happy "
    "hidden hollow honest humble icy jolly keen kind late lively lonely lucky mellow mighty misty "
    "modern narrow neat noble odd pale patient plain polite proud quick quiet rapid rare royal "
    "rusty sandy sharp shiny silent silver simple sleepy smooth solid spare steady stout subtle "
    "sunny swift tall tender tidy tiny velvet vivid warm wide wild windy wise wooden young"
)
ADJECTIVES = _ADJECTIVES.split()
_NOUNS = (
    "acorn anchor apple arrow badger barrel basket beacon bell bench bicycle blanket boat bottle "
    "branch bridge brush bucket button cabin camera candle canoe carpet castle cellar chapel "
    "cherry clock cloud compass copper cottage cradle crane desert drum eagle engine falcon farm "
    "feather fence ferry field flute forest fountain fox garden gate glacier glove guitar hammer "
    "harbour hawk hedge helmet hill horse island jacket jar kettle kite ablation lake lamp lantern "
    "leaf lemon letter lighthouse lion lock map market meadow mill mirror mountain needle nest oak "
    "oar orchard otter owl paddle page palace parcel pearl pencil piano pillow pocket pond quilt "
    "rabbit river rocket rope saddle sail shell ship shovel sparrow spoon stable stone stove sword "
    "table tent thimble thunder tiger tower trumpet tulip tunnel umbrella valley village violin "
    "wagon walnut whistle willow window wolf"
)
NOUNS = _NOUNS.split()
_PLACE_NAMES = (
    "Ashcombe Brindle Carrow Dunmere Eastholm Fernley Garth Halverstad Inchmoor Kestrel Lowfield "
    "Millbrook Norwell Oakmere Penrith Quarry Redwick Stonebridge Thornby Upwood Wexley Yarrow"
)
_PLACES = _PLACE_NAMES.split()
_SENTENCES = (
    "The {adjective} {noun} of {place} was painted again in {year}.",
    "In {year} nobody in {place} remembered who had built the {adjective} {noun}.",
    "A {noun} and a {other} stood beside the road to {place}.",
    "Most visitors to {place} look for the {noun} first and for the {adjective} {other} later.",
    "It rained for {number} days, and the {noun} near {place} was under water.",
    "The council of {place} paid {number} crowns for a {adjective} {noun}.",
    "Every spring the people of {place} carry a {noun} through the streets.",
    "Whoever owns a {adjective} {noun} in {place} pays no tax on a {other}.",
    "The {other} was older than the {noun}, or so they say in {place}.",
    "From the hill one sees {place}, its {adjective} {noun} and {number} roofs.",
    "The teacher kept a {noun}, a {other} and {number} books in a {adjective} cupboard.",
    "On market days a {adjective} {noun} costs less than a {other}.",
)


def prose(rng: random.Random) -> Iterator[str]:
    """Sentences without end, of no matter to any question."""
    while True:
        noun, other = rng.sample(NOUNS, 2)
        yield rng.choice(_SENTENCES).format(
            adjective=rng.choice(ADJECTIVES),
            noun=noun,
            other=other,
            place=rng.choice(_PLACES),
            year=rng.randrange(1780, 1990),
            number=rng.randrange(3, 90),
        )


def stored_prose(rng: random.Random) -> Iterator[str]:
    """Sentences of the example texts, from a random one on, then of `prose` without end."""
    texts = [*stored_sentences()]
    rng.shuffle(texts)
    sentences = [sentence for text in texts for sentence in text]
    start = rng.randrange(len(sentences))
    yield from sentences[start:] + sentences[:start]
    yield from prose(rng)


def people(rng: random.Random, count: int) -> list[str]:
    """Different names of people, none of whom shares a name with another."""
    first, last = (rng.sample(each.split(), count) for each in (_FIRST, _LAST))
    return [" ".join(name) for name in zip(first, last, strict=True)]


_FIRST = "Martha Oscar Nadia Victor Irene Felix Clara Hugo Paula Edith"
_LAST = "Barlow Fischer Moreno Hughes Larsen Carver Dalton Foster Holmes Jensen"


def names(rng: random.Random, count: int) -> list[str]:
    """Different names of two words, e.g. `brisk-anchor`; up to 12,000."""
    every = len(ADJECTIVES) * len(NOUNS)
    found = rng.sample(range(every), count)
    return [f"{ADJECTIVES[at // len(NOUNS)]}-{NOUNS[at % len(NOUNS)]}" for at in found]


def numbers(rng: random.Random, count: int) -> list[str]:
    """Different numbers of seven digits, as RULER's."""
    return [str(each) for each in rng.sample(range(1_000_000, 10_000_000), count)]


def coded_words(rng: random.Random, count: int) -> list[str]:
    """Different made-up words of six letters."""
    found: dict[str, None] = {}
    while len(found) < count:
        found["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=6))] = None
    return [*found]
