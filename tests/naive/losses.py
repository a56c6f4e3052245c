"""The losses as loops, written from the papers; slow and plain."""

from __future__ import annotations

import math

import torch


def _unit(z):
    return z / z.norm(dim=1, keepdim=True)


def _mean(values, zero):
    """Mean over what is above zero."""
    selected = [v for v in values if v.item() > 0]
    return sum(selected) / len(selected) if selected else zero


def _pairs(labels):
    n = len(labels)
    same = [(i, j) for i in range(n) for j in range(n) if i != j and labels[i] == labels[j]]
    other = [(i, j) for i in range(n) for j in range(n) if labels[i] != labels[j]]
    return same, other


def supcon(z, labels, temperature=0.1):
    z, n = _unit(z), len(z)
    if not all(_pairs(labels)):
        return z.sum() * 0
    values = []
    for i in range(n):
        others = [j for j in range(n) if j != i]
        positives = [j for j in others if labels[j] == labels[i]]
        if positives:
            total = sum(torch.exp(z[i] @ z[j] / temperature) for j in others)
            values.append(-sum(z[i] @ z[p] / temperature - torch.log(total) for p in positives) / len(positives))
    return _mean(values, z.sum() * 0)


def multi_similarity(z, labels, alpha=2.0, beta=50.0, base=0.5, epsilon=None):
    z, n = _unit(z), len(z)
    total = z.sum() * 0
    for i in range(n):
        near = {j: z[i] @ z[j] for j in range(n) if j != i and labels[j] == labels[i]}
        far = {j: z[i] @ z[j] for j in range(n) if labels[j] != labels[i]}
        if epsilon is not None:
            if not near or not far:
                near, far = {}, {}
            else:
                hardest, weakest = max(far.values()), min(near.values())
                near, far = (
                    {j: s for j, s in near.items() if s < hardest + epsilon},
                    {j: s for j, s in far.items() if s > weakest - epsilon},
                )
        if near:
            total = total + torch.log(1 + sum(torch.exp(-alpha * (s - base)) for s in near.values())) / alpha
        if far:
            total = total + torch.log(1 + sum(torch.exp(beta * (s - base)) for s in far.values())) / beta
    return total / n


def contrastive(z, labels, positive=1.0, negative=0.5, mine=False, mine_pos=0.9, mine_neg=0.5):
    z = _unit(z)
    same, other = _pairs(labels)
    near = [z[i] @ z[j] for i, j in same]
    far = [z[i] @ z[j] for i, j in other]
    if mine:
        near, far = [s for s in near if s < mine_pos], [s for s in far if s > mine_neg]
    zero = z.sum() * 0
    return _mean([torch.relu(positive - s) for s in near], zero) + _mean([torch.relu(s - negative) for s in far], zero)


def triplet(z, labels, margin=0.2, miner="semihard"):
    z, n = _unit(z), len(z)
    values = []
    for a in range(n):
        near = [p for p in range(n) if p != a and labels[p] == labels[a]]
        far = [k for k in range(n) if labels[k] != labels[a]]

        def d(i, a=a):
            return (z[a] - z[i]).norm()

        if miner == "batch_hard":
            chosen = [(max(near, key=d), min(far, key=d))] if near and far else []
        else:
            chosen = [(p, k) for p in near for k in far]
        for p, k in chosen:
            gap = d(k) - d(p)
            if miner == "semihard" and not (0 < gap <= margin):
                continue
            if miner == "hard" and gap > 0:
                continue
            values.append(torch.relu(margin - gap))
    return _mean(values, z.sum() * 0)


def proxy_anchor(z, labels, proxies, margin=0.1, alpha=32.0):
    z, proxies = _unit(z), _unit(proxies)
    near = far = z.sum() * 0
    present = sorted(set(labels.tolist()))
    for c in range(len(proxies)):
        own = [i for i in range(len(z)) if labels[i] == c]
        rest = [i for i in range(len(z)) if labels[i] != c]
        if own:
            near = near + torch.log(1 + sum(torch.exp(-alpha * (z[i] @ proxies[c] - margin)) for i in own))
        if rest:
            far = far + torch.log(1 + sum(torch.exp(alpha * (z[i] @ proxies[c] + margin)) for i in rest))
    return near / len(present) + far / len(proxies)


def norm_softmax(z, labels, proxies, temperature=0.05):
    z, proxies = _unit(z), _unit(proxies)
    total = z.sum() * 0
    for i in range(len(z)):
        logits = [z[i] @ p / temperature for p in proxies]
        top = max(logits).item()
        total = total + top + torch.log(sum(torch.exp(v - top) for v in logits)) - logits[labels[i]]
    assert math.isfinite(total.item())
    return total / len(z)


def multi_similarity_of_active(z, labels, alpha=2.0, beta=40.0, base=0.5, epsilon=0.1):
    """Mined, each term averaged over the anchors with a pair of its kind left."""
    near, far = [], []
    for i in range(len(labels)):
        own = [z[i] @ z[j] for j in range(len(labels)) if j != i and labels[j] == labels[i]]
        other = [z[i] @ z[j] for j in range(len(labels)) if labels[j] != labels[i]]
        selected = [s for s in own if other and s - epsilon < max(other)]
        if selected:
            near.append(torch.log(1 + sum(torch.exp(-alpha * (s - base)) for s in selected)) / alpha)
        selected = [s for s in other if own and s + epsilon > min(own)]
        if selected:
            far.append(torch.log(1 + sum(torch.exp(beta * (s - base)) for s in selected)) / beta)
    return _mean(near, z.sum() * 0) + _mean(far, z.sum() * 0)


def inverse_density(distance, dim):
    """1/q of a distance of two random points on the sphere, but for a factor."""
    distance = max(float(distance), 0.5)
    return distance ** (2 - dim) * (1 - distance**2 / 4) ** (-(dim - 3) / 2)


def margin(z, labels, triplets, beta, gap=0.2):
    """Divided by the triplets of which either term is above zero."""
    total, active = z.sum() * 0, 0
    for a, p, n in zip(*(rows.tolist() for rows in triplets), strict=True):
        near = torch.sqrt(((z[a] - z[p]) ** 2).sum() + 1e-8) - beta[labels[a]] + gap
        far = beta[labels[a]] - torch.sqrt(((z[a] - z[n]) ** 2).sum() + 1e-8) + gap
        active += bool(near > 0 or far > 0)
        for term in (near, far):
            if term > 0:
                total = total + term
    return total / max(active, 1)


def arcface(z, labels, weights, scale=16.0, angle=0.5):
    losses = []
    for i, label in enumerate(labels.tolist()):
        logits = []
        for c in range(len(weights)):
            cosine = _unit(z[i : i + 1])[0] @ _unit(weights[c : c + 1])[0]
            if c == label:
                cosine = torch.cos(torch.acos(cosine) + angle)
            logits.append(scale * cosine)
        losses.append(torch.log(sum(torch.exp(x) for x in logits)) - logits[label])
    return sum(losses) / len(losses)


def self_similarity(queries, keys, queue, temperature=0.01):
    """Each query against its key and the queue, the cosines to the queue weighted by distance over the batch."""
    dim = queries.shape[1]
    weights = []
    for i in range(len(queries)):
        distances = [(queries[i] - k).norm().item() for k in queue]
        weights.append([0.0 if d > 1.4 else inverse_density(d, dim) for d in distances])
    losses = []
    for i in range(len(queries)):
        logits = [queries[i] @ keys[i] / temperature]
        for j in range(len(queue)):
            total = sum(weights[k][j] for k in range(len(queries)))
            share = weights[i][j] / total if total else 1 / len(queries)
            logits.append((queries[i] @ queue[j]) * share / temperature)
        losses.append(torch.logsumexp(torch.stack(logits), 0) - logits[0])
    return sum(losses) / len(losses)


def distillation(teacher, student, temperature=1.0):
    """KL of the teacher's rows of similarities from the student's, a row an image."""
    total = student.sum() * 0
    for i in range(len(student)):
        p = torch.softmax(torch.stack([teacher[i] @ t for t in teacher]).detach() / temperature, 0)
        q = torch.softmax(torch.stack([student[i] @ t for t in student]) / temperature, 0)
        total = total + sum(a * (torch.log(a) - torch.log(b)) for a, b in zip(p, q, strict=True))
    return total * temperature**2 / len(student)


def discriminator(layers, row):
    """A number of a row, before the sigmoid."""
    for i in range(0, len(layers), 2):
        row = [
            sum(w * x for w, x in zip(line, row, strict=True)) + b for line, b in zip(*layers[i : i + 2], strict=True)
        ]
        if i + 2 < len(layers):
            row = [x if x > 0 else x * 0 for x in row]
    return row[0]
