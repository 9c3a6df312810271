"""What a hospital must not forget: approvals, answers, disclosures and budgets."""
