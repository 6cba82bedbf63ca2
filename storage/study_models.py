"""The tables of studies; their exactness is a unique key: study, sample, variant, budget."""

from datetime import datetime

from sqlalchemy import CheckConstraint, ForeignKey, Integer, String, UniqueConstraint, false, text
from sqlalchemy.orm import Mapped, mapped_column

from storage.models import ROW_ID, SLUG_LENGTH, Base, JsonObject

__all__ = ["Base", "StudyResult", "StudyRow", "StudySample"]


class StudyRow(Base):
    """One study: what was asked. How far it is, its results tell."""

    __tablename__ = "studies"
    __table_args__ = (UniqueConstraint("owner", "name"),)

    id: Mapped[int] = mapped_column(ROW_ID, primary_key=True, doc="internal; links use the slug")
    slug: Mapped[str] = mapped_column(
        String(SLUG_LENGTH), unique=True, doc="random name in links, 12 characters of a-z and 0-9"
    )
    owner: Mapped[str] = mapped_column(doc="the user who made it; empty without logins")
    name: Mapped[str] = mapped_column(doc="as in the study file")
    created_at: Mapped[datetime] = mapped_column(index=True, doc="UTC")
    definition: Mapped[JsonObject] = mapped_column(doc="the study file's values")
    model: Mapped[JsonObject | None] = mapped_column(doc="ModelInfo; null until it ran")
    environment: Mapped[JsonObject | None] = mapped_column(
        doc="versions of python, torch, ...; null until it ran"
    )
    wanted: Mapped[bool] = mapped_column(
        server_default=false(), doc="the app is to run it, also after a restart"
    )
    reason: Mapped[str] = mapped_column(doc="why the app stopped running it; else empty")
    server: Mapped[int | None] = mapped_column(
        doc="the server that runs it now, on PostgreSQL; null for none"
    )
    stored_bytes: Mapped[int] = mapped_column(
        server_default=text("0"), doc="about, of all its rows"
    )
    deleted_at: Mapped[datetime | None] = mapped_column(
        doc="UTC; then nobody sees it, and its rows are being removed"
    )


class StudySample(Base):
    """One sample of a study, as it was when it was first run."""

    __tablename__ = "study_samples"
    __table_args__ = (UniqueConstraint("study_id", "sample"),)

    study_id: Mapped[int] = mapped_column(
        ForeignKey("studies.id", ondelete="CASCADE"), primary_key=True, autoincrement=False
    )
    position: Mapped[int] = mapped_column(
        Integer, primary_key=True, autoincrement=False, doc="0, 1, ... as in the data"
    )
    sample: Mapped[str] = mapped_column(String(200), doc="its id")
    digest: Mapped[str] = mapped_column(String(64), doc="SHA-256 of all that it is, in hex")
    details: Mapped[JsonObject] = mapped_column(
        doc="question, answers, metric, source, tags, choices"
    )
    context: Mapped[str] = mapped_column(doc="the long text")


class StudyResult(Base):
    """What came of one sample at one point; a failed one is written over when it is retried."""

    __tablename__ = "study_results"
    __table_args__ = (
        UniqueConstraint("study_id", "sample", "variant", "budget"),
        CheckConstraint("state IN ('done', 'failed')", name="state"),
    )

    id: Mapped[int] = mapped_column(ROW_ID, primary_key=True)
    study_id: Mapped[int] = mapped_column(ForeignKey("studies.id", ondelete="CASCADE"))
    sample: Mapped[str] = mapped_column(String(200), doc="id of the sample")
    variant: Mapped[str] = mapped_column(String(400), doc="SPEC without budget")
    budget: Mapped[str] = mapped_column(
        String(32), doc="as in the study file; empty for the full cache"
    )
    state: Mapped[str] = mapped_column(String(8), doc="done or failed")
    reason: Mapped[str] = mapped_column(doc="why it failed; else empty")
    for_good: Mapped[bool] = mapped_column(
        server_default=false(), doc="it failed and would fail again, so it is not tried again"
    )
    finished_at: Mapped[datetime] = mapped_column(doc="UTC")
    score: Mapped[float | None] = mapped_column(doc="0 to 1; null where it failed")
    stopped: Mapped[str | None] = mapped_column(String(16), doc="eos or length")
    prompt_tokens: Mapped[int | None] = mapped_column(doc="prompt length in tokens")
    budget_tokens: Mapped[int | None] = mapped_column(doc="asked entries per KV head (mean)")
    cache_bytes: Mapped[int | None] = mapped_column(doc="of this point's prompt entries")
    full_cache_bytes: Mapped[int | None] = mapped_column(doc="the same of the full cache")
    head_l1: Mapped[float | None] = mapped_column(doc="mean over heads; null for the full cache")
    final_l1: Mapped[float | None] = mapped_column(doc="after the last layer")
    kl: Mapped[float | None] = mapped_column(doc="KL(full || variant), nats")
    agreement: Mapped[float | None] = mapped_column(
        doc="share of the full cache's tokens reproduced before the first difference"
    )
    text: Mapped[str] = mapped_column(doc="generated")
