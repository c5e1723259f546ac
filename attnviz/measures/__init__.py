"""What heads do, in numbers.

`maps` has the five measures that stand above a map, taken from one result; the other files measure
a head over a corpus, block of query rows by block. All are sums that can be merged.
"""

from __future__ import annotations

from attnviz.measures.maps import MEASURES, HeadMeasures, measure, measure_all

__all__ = ["MEASURES", "HeadMeasures", "measure", "measure_all"]
