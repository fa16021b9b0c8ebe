"""From a request to a report: plan, judge each case, aggregate, group into faults, shrink."""
