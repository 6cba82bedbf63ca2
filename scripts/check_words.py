"""Refuse words that readers stumble over, and long sentences in documents and on pages.

It reads the tracked Python, JavaScript, HTML and Markdown files, or those given as arguments.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

REFUSED = {
    "told": "shown, reported, or a noun such as message",
    "asked": "requested, or a noun such as request, query",
    "said": "stated, or a noun such as text",
    "whoever": "anyone who, or a noun such as the user",
    "anew": "again",
    "by lot": "at random",
    "ranks nothing": "does not rank the methods",
    "nothing can be told": "the data cannot show it",
    # Former labels of the pages.
    "asked / got": "requested / kept",
    "better heads": "heads below base",
    "heads better": "heads below base",
    "another quality": "the quality that is matched",
    "ended by itself": "finished",
    "names, with commas": "names, separated by commas",
    "slots held": "slots kept",
}
_WORDS = re.compile(
    r"(?<![A-Za-z])(" + "|".join(REFUSED).replace(" ", r"\s+") + r")(?![a-z])", re.IGNORECASE
)
# Sentences of prompts: other words would be another measurement.
_PROMPT_TEXTS = ("A committee had been asked to", "Whoever owns a {adjective}")
_SUFFIXES = {".py", ".js", ".mjs", ".md", ".toml", ".yaml", ".html"}
_SKIPPED = re.compile(r"^(assets/examples|tests|benchmarks/results)/|CHANGELOG\.md$")

LONGEST = 25  # words of a sentence; numbers are none, code and what is filled in count as one
_NO_PAGES = re.compile(
    r"^(benchmarks|scripts)/|^ckv_core/experiment/tasks/|^storage/models.py|/schema.md$"
)
_QUOTED = re.compile(r""""(?:[^"\\\n]|\\.)*"(?:\s*\+\s*"(?:[^"\\\n]|\\.)*")*|`(?:[^`\\]|\\.)*`""")
_FILLED = re.compile(r"\{\{.*?\}\}|\$?\{[^{}]*\}")
_INLINE = re.compile(r"</?(?:a|b|br|code|small|span|strong)\b[^>]*>|\{%.*?%\}")
_TAG = re.compile(r"<[^>]*>")
_PROGRAM = re.compile(r"^ {4}\w|^\w[^.]* \d+ \d+$|-src 'self'", re.MULTILINE)  # no sentences
_NO_PROSE = re.compile(r"```.*?```|<!--.*?-->|\A---\n.*?\n---\n", re.DOTALL)
_BREAK = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) |[|#])")
_SENTENCE_END = re.compile(r"(?<=[.!?])[*)]*\s+(?=[A-Z*\[(])")


def long_sentences(text: str) -> Iterator[tuple[int, str]]:
    """Yield the length and the text of each sentence of a page's prose that is too long."""
    for paragraph in _BREAK.split(_NO_PROSE.sub("", text)):
        if paragraph.startswith(("|", "#", "    ")):
            continue
        plain = re.sub(r"\]\([^)]*\)", "]", re.sub(r"`[^`]*`", "Code", " ".join(paragraph.split())))
        for sentence in _SENTENCE_END.split(plain):
            words = len(re.findall(r"[A-Za-z][\w'-]*", sentence))
            if words > LONGEST:
                yield words, sentence


def page_texts(suffix: str, text: str) -> Iterator[str]:
    """Yield what a file shows on a page: strings that are no docstrings, cut at tags of blocks."""
    shown: list[str] = []
    if suffix == ".html":
        shown = [text]
    elif suffix in (".js", ".mjs"):
        shown = [re.sub(r'"\s*\+\s*"', "", found[0][1:-1]) for found in _QUOTED.finditer(text)]
    elif suffix == ".py":
        nodes = list(ast.walk(ast.parse(text)))
        parts = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}  # docstrings
        filled = [node for node in nodes if isinstance(node, ast.JoinedStr)]
        parts |= {id(part) for node in filled for part in node.values}
        shown = [
            "".join(
                str(getattr(part, "value", "")) if isinstance(part, ast.Constant) else "{}"
                for part in node.values
            )
            for node in filled
        ]
        shown += [
            node.value
            for node in nodes
            if isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in parts
        ]
    for each in shown:
        if not _PROGRAM.search(each):
            yield from _TAG.split(_INLINE.sub("", _FILLED.sub("`filled`", each)))


def main(arguments: list[str]) -> int:
    """Print each refused word and long sentence with its place; exit status 1 if there is any."""
    listed = subprocess.run(["git", "ls-files"], check=True, capture_output=True, text=True)  # noqa: S607
    files = arguments or [name for name in listed.stdout.splitlines() if not _SKIPPED.search(name)]
    found = 0
    for name in files:
        path = Path(name)
        if path.suffix not in _SUFFIXES or path == Path(__file__).relative_to(Path.cwd()):
            continue
        text = path.read_text(encoding="utf-8")
        shown = iter([text]) if path.suffix == ".md" else page_texts(path.suffix, text)
        for words, sentence in chain.from_iterable(map(long_sentences, shown)):
            if _NO_PAGES.search(name):
                break
            found += 1
            sys.stdout.write(f"{name}: {words} words in a sentence: {sentence[:70]}...\n")
        for number, line in enumerate(text.splitlines(), 1):
            if any(text in line for text in _PROMPT_TEXTS):
                continue
            for match in _WORDS.finditer(line):
                found += 1
                better = REFUSED[" ".join(match[1].lower().split())]
                sys.stdout.write(f"{name}:{number}: {match[1]!r}: write {better}\n")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
