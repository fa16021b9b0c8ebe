"""Hidden faults: mutants scaled down until bfloat16 hides them, judged by the property of the widened kernel."""
