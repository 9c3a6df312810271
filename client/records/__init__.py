"""What a hospital must not forget: approvals, answers, disclosures, budgets, and whose they are."""
