"""What pages and endpoints that mbrace serves have in common."""
