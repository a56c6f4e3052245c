"""DMCAC: Jensen–Shannon divergence between the retrievals of a query's views, and cross-attention classification.

Trivedy and Latecki, "Image Retrieval with Self-Supervised Divergence Minimization and Cross-Attention Classification",
IJCAI 2024. B queries in A views of dimension F, and for each query the union of at most T retrieved database vectors.
`js_divergence_reference` and `terms_reference` are the equations in plain PyTorch. The kernels behind them keep all
digits where views nearly agree, and never store a queries × database matrix. See docs/design/dmcac.md.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional


class RetrievalUnion(NamedTuple):
    """The database rows that any view of a query retrieved (eq. 8), ascending (B, T); `mask` is False for padding."""

    members: Tensor
    mask: Tensor

    @property
    def sizes(self) -> Tensor:
        """Members of every query, (B,)."""
        return self.mask.sum(1)


class Database(NamedTuple):
    """Unit vectors (D, F) that queries are compared with, and their labels (D,)."""

    vectors: Tensor
    labels: Tensor


class DMCACTerms(NamedTuple):
    """Of each query (B,): both terms, and the attention on its own class, mean over the views (detached)."""

    divergence: Tensor
    attention: Tensor
    own_attention: Tensor


class AttentionHeads(nn.Module):
    """Classifier and cross-attention of DMCAC: W_ce, W_c, W_q, W_k and W_v, (out, in), without biases.

    Args:
        num_classes: Number of classes.
        dim: Dimension of the embeddings.
        generator: Random generator of the initial weights.
        scale: Factor of all embeddings, of queries and database, at the input of the heads; the paper has 1.

    References:
        Eq. 14, 16 and 18. The paper writes W_q for two matrices whose shapes exclude sharing.

    Example:
        >>> heads = AttentionHeads(num_classes=3, dim=8)
        >>> heads.class_logits(torch.randn(5, 8)).shape
        torch.Size([5, 3])
    """

    def __init__(self, num_classes: int, dim: int, generator: Generator | None = None, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale

        def matrix(rows: int) -> nn.Parameter:
            return nn.Parameter((2 * torch.rand(rows, dim, generator=generator) - 1) * dim**-0.5)

        self.classifier, self.attention_classifier = matrix(num_classes), matrix(num_classes)
        self.query, self.key, self.value = matrix(dim), matrix(dim), matrix(dim)

    def attention_queries(self, z: Tensor) -> Tensor:
        """Return W_kᵀ W_q z/√F, whose product with a database vector is the attention logit (eq. 17)."""
        return self.unscaled_queries(z) / math.sqrt(z.shape[-1])

    def unscaled_queries(self, z: Tensor) -> Tensor:
        """Return W_kᵀ W_q z, times the scales of query and database."""
        return functional.linear(self._scaled(self._scaled(z)), self.query) @ self.key

    def classify(self, z: Tensor) -> Tensor:
        """Return W_ce z (eq. 14)."""
        return functional.linear(self._scaled(z), self.classifier)

    def _scaled(self, x: Tensor) -> Tensor:
        return x if self.scale == 1 else x * self.scale

    def class_logits(self, mixture: Tensor) -> Tensor:
        """Return W_c W_v of an attention-weighted sum of database vectors (eq. 18), the smaller product first."""
        mixture = self._scaled(mixture)
        if len(self.attention_classifier) < mixture.shape[-1]:
            return functional.linear(mixture, self.attention_classifier @ self.value)
        return functional.linear(functional.linear(mixture, self.value), self.attention_classifier)


def retrieval_union(neighbors: Tensor) -> RetrievalUnion:
    """Collect the distinct rows of `neighbors` (B, A, k) for every query.

    Example:
        >>> union = retrieval_union(torch.tensor([[[3, 1], [1, 2]]]))
        >>> union.members.tolist(), union.sizes.tolist()
        ([[1, 2, 3]], [3])
    """
    rows = neighbors.flatten(1).sort(dim=1).values
    first = torch.ones_like(rows, dtype=torch.bool)
    first[:, 1:] = rows[:, 1:] != rows[:, :-1]
    place = first.cumsum(1) - 1
    counts = place[:, -1:] + 1
    width = int(counts.max())
    members = torch.zeros(len(rows), width, dtype=rows.dtype, device=rows.device).scatter_(1, place, rows)
    return RetrievalUnion(members, torch.arange(width, device=rows.device) < counts)


def classification_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropy of each query, summed over its views.

    Args:
        logits: Logits of every view.
        labels: Labels of the queries.

    Shape:
        - logits: ``(B, A, classes)``; labels: ``(B,)``; output: ``(B,)``.

    References:
        Eq. 15 and 19.

    Example:
        >>> classification_loss(torch.zeros(2, 3, 4), torch.tensor([0, 1])).shape
        torch.Size([2])
    """
    views = logits.shape[1]
    targets = labels[:, None].expand(-1, views).reshape(-1)
    each = functional.cross_entropy(logits.flatten(0, 1), targets, reduction="none")
    return each.view(-1, views).sum(1)


def attention_weights(heads: AttentionHeads, z: Tensor, rows: Tensor, mask: Tensor) -> Tensor:
    """Return the attention (B, A, T) of views (B, A, F) on rows (B, T, F); 0 where masked (eq. 17)."""
    return torch.softmax((heads.attention_queries(z) @ rows.mT).masked_fill(~mask[:, None], -math.inf), dim=2)


def cosine_disagreement(z: Tensor) -> Tensor:
    """Return the norm of 1 − cosine over all pairs of views, (B,) of unit z (B, A, F): an ablation of JS."""
    i, j = _view_pairs(z.shape[1], z.device)
    return torch.linalg.vector_norm(1 - (z[:, i] * z[:, j]).sum(2), dim=1)


def js_divergence_reference(similarity: Tensor, mask: Tensor | None = None, temperature: float = 1.0) -> Tensor:
    """Return the norm of the pairwise Jensen–Shannon divergences of softmax(similarity/τ), in nats, as eq. 10 to 13.

    `similarity` (B, A, T) of the views of each query to database vectors; `mask` (B, T) is True for the columns that
    exist (None: all).
    """
    logits = similarity / temperature
    p = (logits if mask is None else logits.masked_fill(~mask[:, None], -math.inf)).softmax(2)
    i, j = _view_pairs(p.shape[1], p.device)
    p = p.clamp(min=torch.finfo(p.dtype).tiny)  # masked columns: a ratio of 1
    mean = (p[:, i] + p[:, j]) / 2
    kl_i, kl_j = ((q * (q / mean).log()).sum(2) for q in (p[:, i], p[:, j]))
    return ((kl_i + kl_j) / 2).square().sum(1).sqrt()


def terms_reference(
    z: Tensor,
    head_input: Tensor,
    labels: Tensor,
    database: Database,
    union: RetrievalUnion,
    heads: AttentionHeads,
    temperature: float,
) -> DMCACTerms:
    """Compute both terms over each query's union as written; arguments as in :func:`union_terms`."""
    rows = database.vectors[union.members]
    weights = attention_weights(heads, head_input, rows, union.mask)
    same = (database.labels[union.members] == labels[:, None]) & union.mask
    own = (weights.detach().mean(1) * same).sum(1)
    divergence = js_divergence_reference(z @ rows.mT, union.mask, temperature)
    return DMCACTerms(divergence, classification_loss(heads.class_logits(weights @ rows), labels), own)


def log_ratios_to_mean(p: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    """Return log(P/M) and log(Q/M), M the mean of P and Q; 0 where both are 0.

    With t = (P − Q)/(P + Q) they are log1p(±t), which keeps its digits where P and Q nearly agree.
    """
    info = torch.finfo(p.dtype)
    t = (p - q).div_((p + q).add_(info.tiny))
    # Where t rounds to ±1 the smaller of the two is negligible, but its logarithm must stay finite.
    t.clamp_(info.eps - 1, 1 - info.eps)
    return t.log1p(), t.neg_().log1p_()


def js_divergences(p: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return log(P/M) (B, pairs, T) of both of each pair of p (B, A, T), divergences (B, pairs), their norm (B,)."""
    i, j = _view_pairs(p.shape[1], p.device)
    p_i, p_j = p.index_select(1, i), p.index_select(1, j)  # much faster than indexing
    ell_i, ell_j = log_ratios_to_mean(p_i, p_j)
    js = 0.5 * p_i.mul_(ell_i).addcmul_(p_j, ell_j).sum(2)
    return ell_i, ell_j, js, torch.linalg.vector_norm(js, dim=1)


def _view_pairs(views: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Pairs i > j of views."""
    i, j = torch.tril_indices(views, views, -1, device=device)
    return i, j


def _at_least_float32(x: Tensor) -> Tensor:
    """Half precision has too few digits for views that nearly agree."""
    return x if x.dtype == torch.float64 else x.float()


def _pair_weights(js: Tensor, norm: Tensor, gradient: Tensor) -> Tensor:
    """½ ∂norm/∂JS, (B, pairs): 0 where all views agree, which is the true slope there."""
    return 0.5 * gradient[:, None] * torch.where(norm[:, None] > 0, js / norm[:, None], 0.0)


def _weighted_log_ratios(divergences: list[Tensor], gradient: Tensor, views: int) -> Tensor:
    """Σ over the pairs of their weight times log(P/M), (B, A, T); `_softmax_gradient` turns it into the gradient."""
    *ells, js, norm = divergences
    weight = _pair_weights(js, norm, gradient)[:, :, None]
    out = js.new_zeros(len(js), views, ells[0].shape[2])
    for places, ell in zip(_view_pairs(views, js.device), ells, strict=True):
        out.index_add_(1, places, ell * weight)
    return out


def _softmax_gradient(p: Tensor, grad: Tensor, inner: Tensor | None = None) -> Tensor:
    """P ∘ (grad − ⟨P, grad⟩); `inner` is ⟨P, grad⟩ where the columns at hand are not all."""
    part = p * grad
    return part.addcmul_(p, part.sum(2, keepdim=True) if inner is None else inner, value=-1)


def union_terms(
    z: Tensor,
    head_input: Tensor,
    labels: Tensor,
    database: Database,
    union: RetrievalUnion,
    heads: AttentionHeads,
    temperature: float,
) -> DMCACTerms:
    """Return divergence and attention classification over each query's union; the database is constant.

    Args:
        z: Unit embeddings of the views, for the divergence.
        head_input: The same embeddings, for the heads.
        labels: Labels of the queries.
        database: The database.
        union: Rows of the database that each query is compared with.
        heads: The attention heads.
        temperature: Temperature τ of the divergence.

    Shape:
        - z and head_input: ``(B, A, F)``; labels: ``(B,)``.

    References:
        Eq. 9 to 13 and 16 to 19.

    Example:
        >>> z, vectors = (torch.nn.functional.normalize(torch.randn(*s, 8), dim=-1) for s in ((2, 3), (10,)))
        >>> union = retrieval_union((z @ vectors.T).topk(4, dim=2).indices)
        >>> database, labels = Database(vectors, torch.arange(10) % 2), torch.tensor([0, 1])
        >>> union_terms(z, z, labels, database, union, AttentionHeads(2, 8), 0.1).attention.shape
        torch.Size([2])
    """
    members, shape = union.members.flatten(), union.members.shape
    rows = database.vectors.index_select(0, members).view(*shape, -1)
    inputs = (_at_least_float32(x) for x in (z, heads.unscaled_queries(head_input), rows))
    norm, mixture, weights = _UnionTerms.apply(*inputs, union.mask, temperature)
    same = database.labels.index_select(0, members).view(shape) == labels[:, None]
    own = (weights.mean(1) * same).sum(1)
    return DMCACTerms(norm, classification_loss(heads.class_logits(mixture), labels), own)


class _UnionTerms(torch.autograd.Function):
    """Divergence, attended mixture and attention over constant rows (B, T, F).

    The products of views and of attention queries with the rows are one, forward and backward, since small products
    are slow. The logits, not the attention queries, are divided by √F: they are fewer.
    """

    @staticmethod
    def forward(
        ctx: Any, z: Tensor, queries: Tensor, rows: Tensor, mask: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        views = z.shape[1]
        logits = torch.cat([z, queries], 1) @ rows.mT
        ctx.temperature = temperature
        _to_logits(logits, views, temperature, z.shape[2])
        both = torch.softmax(logits.masked_fill_(~mask[:, None], -math.inf), dim=2)
        weights, divergences = both[:, views:], js_divergences(both[:, :views])
        ctx.save_for_backward(rows, both, *divergences)
        ctx.mark_non_differentiable(weights)
        return divergences[-1], weights @ rows, weights

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        rows, both, *saved = ctx.saved_tensors
        views = both.shape[1] // 2
        grad_divergence = _weighted_log_ratios(saved, gradients[0], views)
        grad_logits = _softmax_gradient(both, torch.cat([grad_divergence, gradients[1] @ rows.mT], 1))
        _to_logits(grad_logits, views, ctx.temperature, rows.shape[2])
        grad = grad_logits @ rows
        return grad[:, :views], grad[:, views:], None, None, None


def _to_logits(x: Tensor, views: int, temperature: float, dim: int) -> None:
    """Scale products with the rows to logits, in place; gradients go back the same way."""
    x[:, :views].div_(temperature)
    x[:, views:].mul_(dim**-0.5)


def full_terms(
    z: Tensor,
    head_input: Tensor,
    labels: Tensor,
    database: Database,
    heads: AttentionHeads,
    temperature: float,
    block: int = 4096,
) -> DMCACTerms:
    """Return the terms over the whole database, by blocks; vectors that require a gradient get one.

    Args:
        z: Unit embeddings of the views, for the divergence.
        head_input: The same embeddings, for the heads.
        labels: Labels of the queries.
        database: The database.
        heads: The attention heads.
        temperature: Temperature τ of the divergence.
        block: Number of database rows held at a time.

    Shape:
        - z and head_input: ``(B, A, F)``; labels: ``(B,)``.

    References:
        Eq. 9 to 13 and 16 to 19, with all rows in place of the union.

    Example:
        >>> z, vectors = (torch.nn.functional.normalize(torch.randn(*s, 8), dim=-1) for s in ((2, 3), (10,)))
        >>> database, labels = Database(vectors, torch.arange(10) % 2), torch.tensor([0, 1])
        >>> full_terms(z, z, labels, database, AttentionHeads(2, 8), 0.1).divergence.shape
        torch.Size([2])
    """
    z, queries, vectors = (_at_least_float32(x) for x in (z, heads.attention_queries(head_input), database.vectors))
    divergence, mixture, own = FullPass.apply(z, queries, vectors, labels, database.labels, temperature, block)
    return DMCACTerms(divergence, classification_loss(heads.class_logits(mixture), labels), own)


class FullPass(torch.autograd.Function):
    """Compare views `z` and attention queries (B, A, F) with all rows (D, F), without a queries × rows matrix.

    Two passes forward (normalizers and mixture, then divergences) and one backward, each computing the similarities of
    a block anew; exact up to the order of sums. Returns the divergence (B,), the attended mixture of the rows (B, A, F)
    and the attention on the own class (B,).
    """

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
        z, queries, rows, labels, row_labels, temperature, block = inputs
        batch, views, dim = z.shape
        flat_z, flat_queries = z.reshape(-1, dim), queries.reshape(-1, dim)
        own_label = labels.repeat_interleave(views)[:, None]
        lse, top = (z.new_full((len(flat_z), 1), -math.inf) for _ in range(2))
        total, own, mixture = z.new_zeros(len(flat_z), 1), z.new_zeros(len(flat_z), 1), torch.zeros_like(flat_queries)
        for chunk, chunk_labels in zip(rows.split(block), row_labels.split(block), strict=True):
            lse = torch.logaddexp(lse, torch.logsumexp(flat_z @ chunk.t() / temperature, 1, keepdim=True))
            logits = flat_queries @ chunk.t()
            new_top = torch.maximum(top, logits.amax(1, keepdim=True))
            shrink, powers = torch.exp(top - new_top), torch.exp(logits - new_top)
            total = total * shrink + powers.sum(1, keepdim=True)
            own = own * shrink + (powers * (chunk_labels == own_label)).sum(1, keepdim=True)
            mixture = mixture * shrink + powers @ chunk
            top = new_top
        mixture = mixture / total
        i, j = _view_pairs(views, z.device)
        kl_i, kl_j = (z.new_zeros(batch, len(i)) for _ in range(2))
        for chunk in rows.split(block):
            p = _probabilities(flat_z, chunk, temperature, lse, batch)
            p_i, p_j = p[:, i], p[:, j]
            ell_i, ell_j = log_ratios_to_mean(p_i, p_j)
            kl_i += p_i.mul_(ell_i).sum(2)
            kl_j += p_j.mul_(ell_j).sum(2)
        js = 0.5 * (kl_i + kl_j)
        js_norm = torch.linalg.vector_norm(js, dim=1)
        ctx.save_for_backward(z, queries, rows, lse, top + total.log(), mixture, js, kl_i, kl_j, js_norm)
        ctx.temperature, ctx.block = temperature, block
        own_attention = (own / total).view(batch, views).mean(1)
        ctx.mark_non_differentiable(own_attention)
        return js_norm, mixture.view_as(z), own_attention

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        z, queries, rows, lse, attention_lse, mixture, js, kl_i, kl_j, js_norm = ctx.saved_tensors
        batch, views, dim = z.shape
        flat_z, flat_queries = z.reshape(-1, dim), queries.reshape(-1, dim)
        weight = _pair_weights(js, js_norm, gradients[0])[:, :, None] / ctx.temperature
        grad_mixture = gradients[1].reshape(-1, dim)
        inner = (grad_mixture * mixture).sum(1, keepdim=True)
        grad_z, grad_queries, grad_rows = torch.zeros_like(flat_z), torch.zeros_like(flat_queries), list[Tensor]()
        i, j = _view_pairs(views, z.device)
        for chunk in rows.split(ctx.block):
            p = _probabilities(flat_z, chunk, ctx.temperature, lse, batch)
            p_i, p_j = p[:, i], p[:, j]
            grad_logits = torch.zeros_like(p)
            sides = (i, p_i, kl_i), (j, p_j, kl_j)
            for (places, side, kl), ell in zip(sides, log_ratios_to_mean(p_i, p_j), strict=True):
                grad_logits.index_add_(1, places, _softmax_gradient(side, ell, kl[:, :, None]).mul_(weight))
            grad_logits = grad_logits.view(len(flat_z), -1)
            grad_z += grad_logits @ chunk
            attention = torch.exp(flat_queries @ chunk.t() - attention_lse)
            grad_attention = attention * (grad_mixture @ chunk.t() - inner)
            grad_queries += grad_attention @ chunk
            if ctx.needs_input_grad[2]:
                products = (grad_logits, flat_z), (grad_attention, flat_queries), (attention, grad_mixture)
                grad_rows.append(sum((a.t() @ b for a, b in products[1:]), products[0][0].t() @ products[0][1]))
        rows_grad = torch.cat(grad_rows) if grad_rows else None
        return grad_z.view_as(z), grad_queries.view_as(z), rows_grad, None, None, None, None


def _probabilities(flat_z: Tensor, chunk: Tensor, temperature: float, lse: Tensor, batch: int) -> Tensor:
    """(B, A, rows): the part of the views' softmax over all rows that falls on a chunk."""
    return (flat_z @ chunk.t()).div_(temperature).sub_(lse).exp_().view(batch, -1, len(chunk))
