#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| millrace_model::fuzz::adapters(data));
