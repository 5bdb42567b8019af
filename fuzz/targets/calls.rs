#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| millrace_answers::fuzz::calls(data));
