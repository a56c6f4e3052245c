"""The cross-batch memory as loops, written from the specification; slow and plain, in float64."""

from __future__ import annotations

import math

TINY = 1e-6


def column_moments(rows, correction=0):
    n, d = len(rows), len(rows[0])
    mean = [sum(row[j] for row in rows) / n for j in range(d)]
    std = [math.sqrt(sum((row[j] - mean[j]) ** 2 for row in rows) / (n - correction)) for j in range(d)]
    return mean, std


class Memory:
    """Rows by slot. `drift`: None, "xbn", "shrink", ("axbn", q, r, p0, interval, mode) or ("ema", beta)."""

    def __init__(self, size, drift=None, correction=0, renorm="loss"):
        self.size, self.drift, self.correction, self.renorm = size, drift, correction, renorm
        self.rows = [None] * size
        self.labels = [None] * size
        self.ids = [None] * size
        self.pointer = self.steps = 0
        self.mean = self.std = None
        self.gains, self.ps = [], []
        self.gain = 1.0
        self.seen = []  # squared distance of the means and its noise, by step
        self.p = drift[3] if drift and drift[0] == "axbn" else 0.0

    def filled(self):
        return [i for i in range(self.size) if self.rows[i] is not None]

    def shrunk(self, batch, labels):
        """Between the memory's moments and the batch's: averages over the last steps, newer ones with weight 1/16."""
        mean, std = column_moments(batch, self.correction)
        own_mean, own_std = column_moments([self.rows[i] for i in self.filled()], self.correction)
        groups = labels if len(set(labels)) > 1 else range(len(batch))
        without = [
            column_moments([row for row, group in zip(batch, groups, strict=True) if group != left])
            for left in sorted(set(groups))
        ]
        many, out = 1 + len(batch) / len(self.filled()), []
        self.seen.append([])
        for kind, (old, new) in enumerate(((own_mean, mean), (own_std, std))):
            noise = 0.0  # jackknife over the classes, mean over the dimensions
            for j in range(len(mean)):
                values = [moments[kind][j] for moments in without]
                center = sum(values) / len(values)
                noise += sum((v - center) ** 2 for v in values) * (len(values) - 1) / len(values) / len(mean)
            apart = sum((a - b) ** 2 for a, b in zip(new, old, strict=True)) / len(old)
            self.seen[-1].append((apart, noise * many))
            averages = list(self.seen[0][kind])
            for n, step in enumerate(self.seen[1:], 2):
                averages = [a + (b - a) / min(n, 16) for a, b in zip(averages, step[kind], strict=True)]
            gain = max(0.0, 1 - averages[1] / averages[0])
            out.append([(1 - gain) * a + gain * b for a, b in zip(old, new, strict=True)])
        return out

    def target(self, batch):
        mean, std = column_moments(batch, self.correction)
        kind = self.drift if isinstance(self.drift, str) else self.drift[0]
        if kind == "xbn":
            self.gain = 1.0
            return mean, std
        move = True
        if kind == "ema":
            self.gain = 1 - self.drift[1]
        else:
            _, q, r, _, interval, mode = self.drift
            noise = r / len(batch)
            turn = self.steps % interval == 0
            if turn or mode == "noise":
                prior = self.p + (q if turn or mode != "noise" else 0.0)
                self.gain = 1.0 if noise == 0 else prior / (prior + noise)
                self.p = (1 - self.gain) * prior
            move = turn or mode != "filter"
        self.gains.append(self.gain)
        self.ps.append(self.p)
        if self.mean is None:
            self.mean, self.std = mean, std
        elif move:
            k = self.gain
            self.mean = [(1 - k) * old + k * new for old, new in zip(self.mean, mean, strict=True)]
            self.std = [(1 - k) * old + k * new for old, new in zip(self.std, std, strict=True)]
        self.steps += 1
        return self.mean, self.std

    def adapt(self, mean, std):
        slots = self.filled()
        if len(slots) < 2:
            return
        mean_r, std_r = column_moments([self.rows[i] for i in slots], self.correction)
        for i in slots:
            row = []
            for j, z in enumerate(self.rows[i]):
                scale = 1.0 if std_r[j] < TINY or std[j] < TINY else std[j] / std_r[j]
                row.append((z - mean_r[j]) * scale + mean[j])
            if self.renorm == "store":
                length = math.sqrt(sum(z * z for z in row))
                row = [z / length for z in row]
            self.rows[i] = row

    def step(self, batch, labels, ids=None):
        """Adapt, then enqueue; the slot of each row (None where it was overwritten by its own batch)."""
        batch = [list(row) for row in batch]
        if self.drift is not None and len(batch) >= 2:
            if self.drift != "shrink":
                self.adapt(*self.target(batch))
            elif len(self.filled()) > 1:
                self.adapt(*self.shrunk(batch, labels))
        slots = []
        for i, row in enumerate(batch):
            slot = self.pointer
            self.rows[slot], self.labels[slot] = row, labels[i]
            self.ids[slot] = None if ids is None else ids[i]
            self.pointer = (self.pointer + 1) % self.size
            slots = [None if s == slot else s for s in slots] + [slot]
        return slots


def cosine(a, b):
    length = math.sqrt(sum(x * x for x in a)) * math.sqrt(sum(x * x for x in b))
    return sum(x * y for x, y in zip(a, b, strict=True)) / length


def supcon(memory, batch, labels, slots, ids=None, temperature=0.1, pos_margin=None, neg_margin=None, dot=False):
    """SupCon over the filled rows with the pair-margin miner (Euclidean on unit vectors), as a number."""
    similarity = (lambda a, b: sum(x * y for x, y in zip(a, b, strict=True))) if dot else cosine
    losses, total_near, total_far = [], 0, 0
    for i, anchor in enumerate(batch):
        near, far = [], []
        for j in memory.filled():
            if slots is not None and slots[i] == j:
                continue
            if ids is not None and memory.ids[j] is not None and ids[i] == memory.ids[j]:
                continue
            s = similarity(anchor, memory.rows[j])
            distance = math.sqrt(max(2 - 2 * s, 0.0))
            if labels[i] == memory.labels[j]:
                if pos_margin is None or distance > pos_margin:
                    near.append(s / temperature)
            elif neg_margin is None or distance < neg_margin:
                far.append(s / temperature)
        total_near, total_far = total_near + len(near), total_far + len(far)
        if near:
            top = max(near + far)
            lse = top + math.log(sum(math.exp(v - top) for v in near + far))
            losses.append(-sum(v - lse for v in near) / len(near))
    above = [v for v in losses if v > 1e-9]
    if not total_near or not total_far or max(total_near, total_far) <= 1 or not above:
        return 0.0
    return sum(above) / len(above)


def noise_and_motion(means):
    """R = −γ₁ and q = γ₀ + 2γ₁ of the differences of successive batch means, averaged over steps and dimensions."""
    d = len(means[0])
    steps = [[means[k][j] - means[k - 1][j] for j in range(d)] for k in range(1, len(means))]
    gamma0 = sum(x * x for step in steps for x in step) / (len(steps) * d)
    products = [steps[k][j] * steps[k - 1][j] for k in range(1, len(steps)) for j in range(d)]
    gamma1 = sum(products) / len(products)
    return max(-gamma1, 0.0), max(gamma0 + 2 * gamma1, 0.0)


def understatement(labels, correlation):
    """E[s]/σ: the variance of a batch's mean is σ²/B² times Σᵢⱼ of the correlation of images i and j."""
    n = len(labels)
    total = sum(1.0 if i == j else correlation if labels[i] == labels[j] else 0.0 for i in range(n) for j in range(n))
    return math.sqrt(1 - total / n**2)
