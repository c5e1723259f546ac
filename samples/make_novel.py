"""Write a novel of any length, the same one for the same seed: a long text to look at.

    python samples/make_novel.py > novel.txt                 # 100,000 words, on one line
    python samples/make_novel.py --paragraphs | less         # to be read

Nobody would print it, but it is built as novels are, so that a map of it has something to show:
chapters with a place, its words and a cast of their own (blocks to a head that looks for like
words, bands to an untrained one), names that come back (lines), sayings that are remembered word
for word many chapters later (marks far from the diagonal), and a last sentence that all chapters
share. attnviz reads a line as one sequence, hence one line.

Only `Random.random()` is used: Python promises that its numbers stay the same in all versions.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Person:
    """Somebody of the story: a name, and the words for her or him."""

    name: str
    trade: str
    habit: str
    they: str
    them: str
    their: str


def _she(name: str, trade: str, habit: str) -> Person:
    return Person(name, trade, habit, "she", "her", "her")


def _he(name: str, trade: str, habit: str) -> Person:
    return Person(name, trade, habit, "he", "him", "his")


PEOPLE = (
    _she("Marta", "pilot", "counted the steps under her breath"),
    _he("Anselm", "clockmaker", "wound a watch that had stopped long ago"),
    _she("Odile", "schoolteacher", "corrected a spelling in the dust with her finger"),
    _he("Bruno", "ferryman", "looked at the water before he looked at anybody"),
    _she("Ines", "doctor", "washed her hands twice"),
    _he("Tobias", "postman", "patted the bag as if a letter might have left it"),
    _she("Frieda", "baker", "brushed flour from sleeves that had none"),
    _he("Lazar", "judge", "weighed a pebble in his palm"),
    _she("Wilma", "bell ringer", "hummed the hour a little too early"),
    _he("Jonas", "cartographer", "drew the coast on the tablecloth with a fork"),
    _she("Salome", "widow", "set a second cup on the table"),
    _he("Piet", "lamplighter", "shaded his eyes from a light that was not lit"),
)

PLACES = {
    "the lighthouse": ("lens", "gallery", "spiral stair", "oil store"),
    "the harbour": ("crane", "customs shed", "anchor chain", "herring barrel"),
    "the salt works": ("evaporating pan", "white heap", "wooden rake", "brine pump"),
    "the old mill": ("millstone", "water wheel", "flour sack", "sluice gate"),
    "the schoolhouse": ("blackboard", "inkwell", "globe", "row of coat hooks"),
    "the observatory": ("telescope", "dome", "star chart", "observer's chair"),
    "the ferry landing": ("rope winch", "timetable", "waiting bench", "flat boat"),
    "the glass house": ("lemon tree", "watering can", "broken pane", "fern"),
    "the quarry": ("derrick", "blasting hut", "green pool", "slate wall"),
    "the market hall": ("scales", "awning", "fish counter", "chestnut stove"),
    "the bell tower": ("bell rope", "pigeon loft", "clock face", "great beam"),
    "the river bend": ("willow", "eel trap", "sandbank", "drowned fence"),
    "the archive": ("card catalogue", "reading lamp", "iron shelf", "sealed folder"),
    "the orchard": ("apple press", "beehive", "ladder", "stone wall"),
    "the north pier": ("tide gauge", "fishing net", "rusted bollard", "signal mast"),
    "the railway halt": ("signal box", "platform clock", "luggage cart", "rail switch"),
}
"""Each place of the story, and what is to be seen there and nowhere else."""

THINGS = (
    "brass key", "torn map", "letter without a stamp", "blue lantern", "broken compass",
    "silver thimble", "ledger", "child's drawing", "jar of black sand", "cracked bell",
    "photograph", "wooden whistle",
)  # fmt: skip

WEATHERS = (
    "Rain had come in from the sea", "Fog lay on the roofs", "The frost had not left the windows",
    "A dry wind worried the shutters", "The morning was clear as a bell", "Snow fell without hurry",
    "The heat stood in the streets", "Thunder walked about behind the hills",
)  # fmt: skip

ADVERBS = (
    "slowly", "without a word", "at last", "for the second time", "almost gladly", "too quickly",
    "with great care", "as if in a dream",
)  # fmt: skip

SUBJECTS = (
    "the tide", "a map", "a locked door", "bread", "the bell", "a ferry", "a letter", "a lamp",
    "silence", "a stopped clock", "the river", "a good lie", "winter", "an empty chair",
    "the coast", "a borrowed coat", "salt", "the last train",
)  # fmt: skip

CLAIMS = (
    "keeps no promises", "remembers the hands that made it", "does not choose the hour",
    "has two sides and belongs to neither", "is only late until somebody waits for it",
    "sees nothing of its own light", "is the longest of all answers", "was here before its name",
    "was never right about the past", "does not grow by being counted",
    "asks for more than it gives", "begins where the talking ends", "forgives everything but haste",
    "is heavier in the evening", "knows the way home and does not tell",
    "is what the sea leaves over",
)  # fmt: skip

OBJECTIONS = (
    "That is what they said the last time", "You would not say so if you had seen it",
    "I have heard worse reasons, but not many", "Then why does nobody speak of it",
    "Perhaps, but not tonight", "You always begin at the end", "I had hoped that you would say it",
    "Nobody asked the sea",
)  # fmt: skip

REFRAIN = "And over the roofs of Varn the bell told the hour to nobody in particular."


@dataclass(frozen=True)
class Memory:
    """What was said once, and may be remembered word for word."""

    speaker: Person
    saying: str
    place: str


class Author:
    """Draws from a seed, and remembers what the chapters before have said."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._sayings: list[Memory] = []  # of this chapter
        self._memories: list[Memory] = []  # of those before
        self._chapters = 0

    def novel(self) -> Iterator[str]:
        """Paragraphs, chapter after chapter, without end."""
        while True:
            yield from self.chapter()

    def chapter(self) -> Iterator[str]:
        """A heading, scenes with one place, one thing and three people, the refrain."""
        self._chapters += 1
        self._memories += self._sayings
        self._sayings = []
        place, thing = self._one(tuple(PLACES)), self._one(THINGS)
        cast = self._some(PEOPLE, 3)
        yield f"Chapter {self._chapters}. {_title(place)}, or the {_title(thing)}."
        yield self._opening(place, thing, cast)
        for _ in range(22 + self._below(12)):
            yield self._scene(place, thing, cast)
        yield REFRAIN

    def _opening(self, place: str, thing: str, cast: Sequence[Person]) -> str:
        first, second, third = cast
        return (
            f"{self._one(WEATHERS)} when {first.name}, the {first.trade}, came to {place}. "
            f"{_start(first.they)} had a {thing} with {first.them}, and {first.they} meant to give "
            f"it to {second.name} before {third.name} could hear of it. {second.name}, who was the "
            f"{second.trade} of Varn and had been for longer than {second.they} liked to say, "
            f"{second.habit}."
        )

    def _scene(self, place: str, thing: str, cast: Sequence[Person]) -> str:
        kinds = (
            self._talk,
            self._talk,
            self._sight,
            self._sight,
            self._walk,
            self._search,
            self._recollection,
        )
        sentences = [self._one(kinds)(place, thing, *self._some(cast, 2)) for _ in range(3)]
        return " ".join(sentences)

    def _talk(self, place: str, thing: str, a: Person, b: Person) -> str:
        saying = f"{self._one(SUBJECTS)} {self._one(CLAIMS)}"
        self._sayings.append(Memory(a, saying, place))
        answers = (
            f'"{self._one(OBJECTIONS)}," said {b.name}, and {b.habit}.',
            f"{b.name} {b.habit} and said nothing.",
            f'"{self._one(OBJECTIONS)}," {b.name} answered {self._one(ADVERBS)}.',
            f"{b.name} looked at the {thing} and then at the {a.trade}'s hands.",
        )
        return f'"{_start(saying)}," said {a.name} {self._one(ADVERBS)}. {self._one(answers)}'

    def _sight(self, place: str, thing: str, a: Person, b: Person) -> str:
        one, other = self._some(PLACES[place], 2)
        ways = (
            f"{a.name} stood between the {one} and the {other}, and {b.name} {b.habit}.",
            f"The {one} was where it had always been, but somebody had moved the {other}, and "
            f"{a.name} knew that it was {b.name}.",
            f"Nobody in {place} touched the {one} while the {a.trade} was looking at the {other}.",
            f"The {thing} had been lying behind the {one} for years, if {b.name} was right, and "
            f"under the {other}, if one believed {a.name}.",
            f"{b.name} leaned on the {one} {self._one(ADVERBS)} and asked what the {other} was "
            "for.",
        )
        return self._one(ways)

    def _walk(self, place: str, thing: str, a: Person, b: Person) -> str:
        other = self._one(tuple(PLACES))
        ways = (
            f"{a.name} and {b.name} walked from {place} to {other} and back, and neither of them "
            f"mentioned the {thing}.",
            f"From {place} one could see {other}, and there {a.name} had first met {b.name}, when "
            f"{b.they} was not yet the {b.trade}.",
            f"{self._one(WEATHERS)}, and {a.name} {self._one(ADVERBS)} shut the door of {place} "
            f"while {b.name} {b.habit}.",
            f"Whenever {a.name} thought of {other}, {a.they} {a.habit}; {b.name} had noticed it "
            f"and kept it to {b.them}self.",
        )
        return self._one(ways)

    def _search(self, place: str, thing: str, a: Person, b: Person) -> str:
        ways = (
            f"They looked for the {thing} under the stairs of {place}, and {b.name} found only "
            f"dust and a {self._one(THINGS)}.",
            f"{a.name} hid the {thing} {self._one(ADVERBS)}, though {b.name} had seen {a.them} do "
            "it.",
            f"It was {b.name} who gave the {thing} back to {a.name}, {self._one(ADVERBS)}, and "
            f"{a.name} {a.habit}.",
            f"Of all that was kept in {place}, {a.name} would have saved the {thing} first "
            f"and a {self._one(THINGS)} last.",
        )
        return self._one(ways)

    def _recollection(self, place: str, thing: str, a: Person, b: Person) -> str:
        if not self._memories:
            return self._search(place, thing, a, b)
        memory = self._one(self._memories)
        who = f"{a.they} {a.them}self" if memory.speaker is a else memory.speaker.name
        return (
            f'{a.name} remembered what {who} had said at {memory.place}: "'
            f'{_start(memory.saying)}." {_start(a.they)} told it to {b.name} '
            f"{self._one(ADVERBS)}."
        )

    def _below(self, n: int) -> int:
        return int(self._random.random() * n)

    def _one(self, choices: Sequence[T]) -> T:
        return choices[self._below(len(choices))]

    def _some(self, choices: Sequence[T], n: int) -> list[T]:
        """`n` different ones, in a random order."""
        rest = list(choices)
        return [rest.pop(self._below(len(rest))) for _ in range(n)]


def novel(words: int = 100_000, seed: int = 0) -> list[str]:
    """Paragraphs with `words` words in all (as `str.split` counts them), or a few more.

    It ends with the paragraph that reaches the number, and the refrain.
    """
    paragraphs: list[str] = []
    written = 0
    for paragraph in Author(seed).novel():
        paragraphs.append(paragraph)
        written += len(paragraph.split())
        if written >= words - len(REFRAIN.split()):
            break
    return paragraphs if paragraphs[-1] == REFRAIN else [*paragraphs, REFRAIN]


def _start(text: str) -> str:
    return text[0].upper() + text[1:]


def _title(thing: str) -> str:
    return " ".join(_start(word) for word in thing.split())


def main() -> None:
    """Print the novel that the flags ask for."""
    parser = argparse.ArgumentParser(description="Print a novel, the same one for the same seed.")
    parser.add_argument("--words", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--paragraphs", action="store_true", help="a blank line between paragraphs")
    given = parser.parse_args()
    between = "\n\n" if given.paragraphs else " "
    sys.stdout.write(between.join(novel(given.words, given.seed)) + "\n")


if __name__ == "__main__":
    main()
