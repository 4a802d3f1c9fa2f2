"""What users of such tools complain of, by number, on real hosts. Others are named so elsewhere:

grep -rn 'def test_case_' tests
"""
