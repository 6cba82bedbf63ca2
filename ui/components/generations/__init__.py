"""What every variant generates, side by side, while it streams, and its follow-up answers."""

from ui.components.base import component

Generations = component(__file__, "generations")
"""Shows {"cards", "answer"}; a friendly line while the value is None.

`cards` is a list of {"index", "look", "label", "spec", "status", "chips", "token_texts",
"first_difference", "reference", "stopped", "answer", "forced"}: `first_difference` is the
index of the first token that differs from the reference card's, `answer` is its
outcome in words or None, `forced` the address of the card's fidelity strip or None. A card with
`stopped` None is announced as live text while its `status` is none of "", waiting, queued,
done, failed, cancelled. The strip's address answers {"tokens", "top1", "kl", "rank", "steps"};
a step is {"full", "variant"}, both lists of {"text", "probability"}, best first.
"""

FollowUpAnswers = component(__file__, "follow_ups")
"""Shows {"questions"}, each {"question", "cards"} with cards as above; hidden without any."""
