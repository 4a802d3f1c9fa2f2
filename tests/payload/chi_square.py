"""A chi-square test against a known law, without a statistics package."""


def chi_square(counts, probabilities):
    """``(statistic, 99.9 % critical value)`` (Wilson-Hilferty); cells expecting fewer than 5 are pooled."""
    total = sum(counts)
    cells = [[count, total * p] for count, p in zip(counts, probabilities, strict=True)]
    assert not any(count and not expected for count, expected in cells), "an impossible outcome occurred"
    large = [cell for cell in cells if cell[1] >= 5]
    small = [cell for cell in cells if 0 < cell[1] < 5]
    if small:
        large.append([sum(cell[0] for cell in small), sum(cell[1] for cell in small)])
    statistic = sum((count - expected) ** 2 / expected for count, expected in large)
    freedom, z = len(large) - 1, 3.0902323
    return statistic, freedom * (1 - 2 / (9 * freedom) + z * (2 / (9 * freedom)) ** 0.5) ** 3
